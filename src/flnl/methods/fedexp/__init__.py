"""FedExP: the server goes further along the cohort's mean change where clients disagree (Jhunjhunwala et al. 2023)."""
