"""FLR: a regulariser towards pseudo labels from the server's and the client's predictions."""
