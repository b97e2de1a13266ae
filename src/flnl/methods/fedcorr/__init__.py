"""FedCorr (Xu et al. 2022): noisy clients by LID, wrong labels by loss, corrected in stages."""
