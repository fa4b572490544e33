"""Several processes that share one mesh of devices: how they meet, watch each other, agree and end. No methods here."""
