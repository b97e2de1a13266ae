"""FLR: a regulariser towards pseudo labels from the predictions of the server's and the client's models."""
