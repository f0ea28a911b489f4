# Three images from one wheel: operator, engine, plugin. `docker build --target NAME .`
# Releases give each base by digest: --build-arg PYTHON_IMAGE=docker.io/library/python@sha256:...
ARG PYTHON_IMAGE=docker.io/library/python:3.12-slim-bookworm
ARG BUSYBOX_IMAGE=docker.io/library/busybox:1.37-musl
ARG VLLM_IMAGE=docker.io/vllm/vllm-openai:v0.32.0
ARG VERSION=0.1.0
ARG REVISION=unknown

FROM ${PYTHON_IMAGE} AS wheel
# Read by pip: with them a build needs no network, but a folder of wheels that is mounted into it.
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
# The versions are those the tests run with.
COPY hack/setup/constraints.txt /constraints.txt
RUN python3 -m venv /tools \
 && /tools/bin/pip install --no-cache-dir --constraint /constraints.txt hatchling
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY operator/paceline_operator operator/paceline_operator
COPY engine/paceline_engine engine/paceline_engine
RUN ["/tools/bin/pip", "wheel", "--no-cache-dir", "--no-deps", "--no-build-isolation", "--wheel-dir", "/wheels", "."]

# No commands but Python's own: the operator is a module, and what is not there cannot be run.
# Byte code that names no time of a file: two builds have the same, and it is there where the root is read-only.
FROM wheel AS environment
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
RUN python3 -m venv --without-pip /opt/paceline \
 && /tools/bin/pip --python /opt/paceline/bin/python install --no-cache-dir --no-compile --only-binary :all: \
      --constraint /constraints.txt "$(echo /wheels/*.whl)[operator]" \
 && find /opt/paceline/bin ! -type d ! -name 'python*' -delete \
 && PYTHONHASHSEED=0 /opt/paceline/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/paceline/lib

# What vLLM looks for: the package and the entry point that names it. Nothing of the operator.
FROM wheel AS unpacked
RUN python3 -m zipfile -e /wheels/*.whl /wheel \
 && mkdir -p /plugin/dist-info \
 && cp -r /wheel/paceline_engine /plugin/ \
 && cp /wheel/*.dist-info/METADATA /wheel/*.dist-info/entry_points.txt /plugin/dist-info/ \
 && mv /plugin/dist-info "/plugin/$(basename /wheel/*.dist-info)" \
 && chmod -R a+rX /plugin

FROM ${PYTHON_IMAGE} AS operator
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="paceline operator" \
      org.opencontainers.image.description="Keeps speculative decoding in vLLM at the right pace on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=environment /opt/paceline /opt/paceline
# PYTHONSAFEPATH: the working directory is never searched for modules. USER: kopf asks for it, and a bare uid has no name.
ENV PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 USER=paceline
USER 65532:65532
WORKDIR /
# The operator is process 1 and gets SIGTERM itself.
ENTRYPOINT ["/opt/paceline/bin/python", "-m", "paceline_operator"]

# The init container copies /plugin into a volume that any vLLM image finds on its PYTHONPATH.
FROM ${BUSYBOX_IMAGE} AS plugin
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="paceline plugin" \
      org.opencontainers.image.description="The files by which vLLM finds paceline's plugin, and cp" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=unpacked /plugin /plugin
USER 65532:65532

# A vLLM image that brings the plugin: spec.engine.plugin.injection InImage.
FROM ${VLLM_IMAGE} AS engine
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="vLLM with paceline's plugin" \
      org.opencontainers.image.description="A vLLM image that brings paceline's plugin" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=unpacked /plugin /opt/paceline/plugin
# A .pth file, not PYTHONPATH: a serving that sets PYTHONPATH must not lose the plugin.
RUN ["python3", "-c", "import pathlib, sysconfig; pathlib.Path(sysconfig.get_path('purelib'), 'paceline.pth').write_text('/opt/paceline/plugin\\n')"]
