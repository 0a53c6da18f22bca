# The image of a worker or the HTTP API: Perdure with its extras; the agents are mounted or copied in.
#   docker build -t perdure .
#   docker run --rm perdure --help
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE requirements.lock ./
COPY perdure ./perdure
# There is no git here to tell it: docker build --build-arg VERSION="$(.venv/bin/hatchling version)" …
ARG VERSION=0.1.0.dev0
RUN SETUPTOOLS_SCM_PRETEND_VERSION=${VERSION} pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
# The versions of the lock file, without the development tools that it also names.
RUN sed -nE 's/^([A-Za-z0-9._-]+)(\[[^]]*\])?(==[^\\]*[^\\ ]) *\\?$/\1\3/p' requirements.lock > /wheels/constraints.txt

FROM python:3.13-slim
ARG EXTRAS=adk,api,encryption,telemetry
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir -c /wheels/constraints.txt "$(ls /wheels/perdure-*.whl)[${EXTRAS}]" && rm -r /wheels
RUN useradd --system --uid 10001 --no-create-home --home-dir /app perdure \
    && install -d -o 10001 /var/lib/perdure/artifacts
WORKDIR /app
ENV PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["perdure"]
CMD ["--help"]
