"""FedCorr (Xu et al. 2022): detects noisy clients by LID and wrong labels by loss, and corrects labels in stages."""
