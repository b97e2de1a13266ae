"""FedEFC: forward correction from the round on in which training accuracy stops to rise (WACV 2026)."""
