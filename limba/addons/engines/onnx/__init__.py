"""ONNX Runtime and Optimum: graphs, their files, and the proof by the engine. `to_onnx` imports it."""
