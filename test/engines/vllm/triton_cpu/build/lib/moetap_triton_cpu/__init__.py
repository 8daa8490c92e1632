"""A Triton backend named `cpu` that compiles nothing.

vLLM uses Triton on a CPU only if there is a backend of that name. With TRITON_INTERPRET=1 kernels
run in Triton's interpreter, which needs no compiler. So nothing here is ever asked to compile.
"""
