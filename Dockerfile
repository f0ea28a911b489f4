# Three images from one wheel: operator, engine, plugin. `docker build --target NAME .`
# Releases give each base by digest: --build-arg PYTHON_IMAGE=docker.io/library/python@sha256:...
ARG PYTHON_IMAGE=docker.io/library/python:3.12-slim-bookworm
ARG BUSYBOX_IMAGE=docker.io/library/busybox:1.37-musl
ARG VLLM_IMAGE=docker.io/vllm/vllm-openai:v0.32.0

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY operator/paceline_operator operator/paceline_operator
COPY engine/paceline_engine engine/paceline_engine
RUN ["python3", "-m", "pip", "wheel", "--no-cache-dir", "--no-deps", "--wheel-dir", "/wheels", "."]

# The versions are those the tests run with.
FROM wheel AS environment
COPY hack/setup/constraints.txt /constraints.txt
RUN python3 -m venv /opt/paceline \
 && /opt/paceline/bin/pip install --no-cache-dir --constraint /constraints.txt "$(echo /wheels/*.whl)[operator]" \
 && /opt/paceline/bin/pip uninstall --yes pip

# What vLLM looks for: the package and the entry point that names it. Nothing of the operator.
FROM wheel AS unpacked
RUN python3 -m zipfile -e /wheels/*.whl /wheel \
 && mkdir -p /plugin/dist-info \
 && cp -r /wheel/paceline_engine /plugin/ \
 && cp /wheel/*.dist-info/METADATA /wheel/*.dist-info/entry_points.txt /plugin/dist-info/ \
 && mv /plugin/dist-info "/plugin/$(basename /wheel/*.dist-info)" \
 && chmod -R a+rX /plugin

FROM ${PYTHON_IMAGE} AS operator
COPY --from=environment /opt/paceline /opt/paceline
# PYTHONSAFEPATH: the working directory is never searched for modules. USER: kopf asks for it, and a bare uid has no name.
ENV PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 USER=paceline
USER 65532:65532
WORKDIR /
# The operator is process 1 and gets SIGTERM itself.
ENTRYPOINT ["/opt/paceline/bin/python", "-m", "paceline_operator"]

# The init container copies /plugin into a volume that any vLLM image finds on its PYTHONPATH.
FROM ${BUSYBOX_IMAGE} AS plugin
COPY --from=unpacked /plugin /plugin
USER 65532:65532

# A vLLM image that brings the plugin: spec.engine.plugin.injection InImage.
FROM ${VLLM_IMAGE} AS engine
COPY --from=unpacked /plugin /opt/paceline/plugin
# A .pth file, not PYTHONPATH: a serving that sets PYTHONPATH must not lose the plugin.
RUN ["python3", "-c", "import pathlib, sysconfig; pathlib.Path(sysconfig.get_path('purelib'), 'paceline.pth').write_text('/opt/paceline/plugin\\n')"]
