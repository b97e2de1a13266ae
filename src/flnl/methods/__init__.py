"""Methods whose parts send each other messages, a folder a paper. Configuration names them; nothing imports them."""
