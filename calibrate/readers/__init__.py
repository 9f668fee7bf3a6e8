"""Readers of files that benchmark programs write: vLLM, SGLang, genai-perf and AIPerf, llama-bench, torch.profiler."""
