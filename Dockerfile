# SPDX-License-Identifier: Apache-2.0
# CPD in a container, with torch:
#
#   docker build -t cpd .
#   docker run --rm cpd cpd show e4m3
#   docker build -t cpd --build-arg CUDA=13.0.1 . && docker run --rm --gpus all cpd cpd --version
#
# CUDA: the version of the toolkit that compiles the CUDA kernels; without CUDA, no CUDA kernels are built.
# CUDAARCHS: the GPU architectures (compute capabilities) to compile for.
# PIP_EXTRA_INDEX_URL: an index with torch's CPU builds, which make an image without CUDA some gigabytes smaller.
ARG CUDA
ARG BUILD_IMAGE=${CUDA:+nvidia/cuda:${CUDA}-devel-ubuntu24.04}
ARG IMAGE=${CUDA:+ubuntu:24.04}

FROM ${BUILD_IMAGE:-debian:12-slim} AS build
ARG CUDAARCHS="80;90;100;120"
ARG PIP_EXTRA_INDEX_URL
ENV CUDAARCHS=${CUDAARCHS} PIP_EXTRA_INDEX_URL=${PIP_EXTRA_INDEX_URL}
WORKDIR /cpd
COPY . .
RUN ./dev wheel

FROM ${IMAGE:-debian:12-slim}
ARG PIP_EXTRA_INDEX_URL
ENV PATH=/opt/cpd/bin:$PATH NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /cpd/out/*.whl /tmp/
RUN python3 -m venv /opt/cpd \
    && pip install --no-cache-dir /tmp/cpd-*.whl /tmp/cpd_lab-*.whl \
    && rm /tmp/*.whl
WORKDIR /work
CMD ["cpd", "--help"]
