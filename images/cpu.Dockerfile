# An image for nodes without GPUs. Wheels are taken from wheelhouse/ in the build context if it is there, else from the index.
#   docker build -f cpu.Dockerfile --build-arg BASE=... --build-arg TORCH_INDEX=... -t ccbed/cpu:2.13.0 .
ARG BASE=python:3.11-slim

FROM ${BASE} AS torch
USER root
# `ccbed image build` finds the stage by this label and removes it: it is as large as the image.
LABEL ccbed.image.stage=torch
# pip's index of the CPU build of torch. Without it, pip uses its own index.
ARG TORCH_INDEX=
# The wheelhouse may be absent: a pattern without a match is no error if another source exists.
COPY requirements.txt wheelhouse* /build/
RUN python3 -m venv /opt/ccbed \
 && if ls /build/torch-*.whl >/dev/null 2>&1; then set -- --no-index --find-links /build; \
    else set -- ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"}; fi \
 && /opt/ccbed/bin/pip install --no-cache-dir --disable-pip-version-check "$@" -r /build/requirements.txt \
 && find /opt/ccbed -name '*.a' -delete && rm -rf /opt/ccbed/lib/python3*/site-packages/torch/test \
 && rm -rf /opt/ccbed/lib/python3*/site-packages/pip /opt/ccbed/lib/python3*/site-packages/pip-* /opt/ccbed/bin/pip* \
 && /opt/ccbed/bin/python -c 'import torch.distributed; assert torch.distributed.is_available()'

# One layer over the base: neither wheels nor caches get here.
FROM ${BASE}
COPY --from=torch /opt/ccbed /opt/ccbed
RUN id ccbed >/dev/null 2>&1 || useradd --uid 1000 --create-home --shell /bin/sh ccbed
ENV PATH=/opt/ccbed/bin:$PATH PYTHONUNBUFFERED=1
USER ccbed
CMD ["python3"]
