"""What the generating endpoints share: fields, prompts in progress, streams, log probabilities."""
