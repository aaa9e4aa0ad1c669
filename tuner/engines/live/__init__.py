"""Changing the scheduler of a live, idle vLLM engine instead of restarting it.

Inside vLLM's processes run ``plugin`` (found by vLLM through an entry point), ``arguments``,
``probe``, ``rebuild``, ``pool``, ``watchdog`` and ``recorder``: they need the standard library
only and import vLLM when they are called. In our own process run ``client``, ``ceiling`` and
``temperature``; in the API server of ``vllm serve`` runs ``middleware``.
"""
