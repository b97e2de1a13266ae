"""FedEFC: forward correction, once training accuracy has stopped rising (WACV 2026)."""
