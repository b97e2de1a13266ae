"""FedES: clients by their estimated quality, and updates decayed where they are critical."""
