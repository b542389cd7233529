# An image for nodes with GPUs, based on a stock CUDA PyTorch image; packages that it has stay as they are.
#   docker build -f cuda.Dockerfile --build-arg BASE=<registry>/pytorch:<tag with your CUDA version> -t ccbed/cuda:2.13.0 .
ARG BASE
FROM ${BASE}
USER root
ARG TORCH_INDEX=
COPY requirements.txt wheelhouse* /build/
# A base with torch keeps its own, built for its CUDA, in any version: only missing packages are installed.
RUN if ! python3 -c 'import torch.distributed, numpy' 2>/dev/null; then \
      if ls /build/torch-*.whl >/dev/null 2>&1; then set -- --no-index --find-links /build; \
      else set -- ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"}; fi; \
      if ! python3 -m pip --version >/dev/null 2>&1; then \
        apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-pip && rm -rf /var/lib/apt/lists/*; fi; \
      PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir --disable-pip-version-check "$@" -r /build/requirements.txt; \
    fi \
 && python3 -c 'import torch.distributed as d; assert d.is_nccl_available(), "this torch is built without NCCL: another base, or a wheelhouse of CUDA wheels"' \
 && { id ccbed >/dev/null 2>&1 || useradd --create-home --shell /bin/sh ccbed; } \
 && { command -v ip >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends iproute2 && rm -rf /var/lib/apt/lists/*; } || true; }
ENV PYTHONUNBUFFERED=1 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER ccbed
CMD ["python3"]
