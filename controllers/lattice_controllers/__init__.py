"""The two controllers: scheduler (own loop) and operator (kopf); each is a program, and they are strangers to each other."""
