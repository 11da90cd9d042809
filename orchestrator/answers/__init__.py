"""What hosts answer, as frozen dataclasses, and the decoder that makes them of JSON. Pure."""
