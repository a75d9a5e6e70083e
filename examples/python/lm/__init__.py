"""A byte-level language model that shows what the positional encodings of posenc do to long inputs."""
