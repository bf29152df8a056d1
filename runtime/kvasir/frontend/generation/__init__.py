"""What the generating endpoints share: fields, generations, streams, log probabilities."""
