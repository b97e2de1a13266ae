"""FNRE: the noise rate of every client, from how often the model agrees with its labels, and with clean ones."""
