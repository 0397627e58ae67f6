"""Recording of activations, under the path that users import; it is written in ``multippo.networks.inspect``."""

from multippo.networks.inspect.recording import ACTIVATION_KEY, extract_activations, with_recording

__all__ = ["ACTIVATION_KEY", "extract_activations", "with_recording"]
