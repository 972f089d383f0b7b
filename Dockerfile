# Builds the programs and an image that holds nothing else:
#
#   docker build -t moe-server .
#   docker run --rm -p 127.0.0.1:50051:50051 moe-server --demo
#
# The tests, inside the same system:
#
#   docker build --target test -t moe-server-test . && docker run --rm moe-server-test
ARG BASE=debian:trixie-slim

FROM ${BASE} AS build
WORKDIR /src
COPY deploy/install_dependencies.sh deploy/
RUN deploy/install_dependencies.sh build && rm -rf /var/lib/apt/lists/*
COPY . .
ARG REVISION=unknown
RUN cmake --preset release -DMOE_BUILD_TESTS=OFF -DMOE_COMMIT="${REVISION}" \
  && cmake --build --preset release --parallel "$(nproc)" \
    --target programs \
  && strip build/release/bin/*

# Runs the tests when it is started, not when it is built: older builders build
# every stage that stands above the wanted one.
FROM build AS test
RUN deploy/install_dependencies.sh test && rm -rf /var/lib/apt/lists/*
CMD ["tests/run.sh"]

FROM ${BASE}
ARG BASE
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="moe-server" \
  org.opencontainers.image.description="CPU inference server for the feed-forward layers of transformer models" \
  org.opencontainers.image.licenses="Apache-2.0" \
  org.opencontainers.image.base.name="${BASE}" \
  org.opencontainers.image.version="${VERSION}" \
  org.opencontainers.image.revision="${REVISION}"
RUN --mount=type=bind,source=deploy/install_dependencies.sh,target=/install.sh \
  bash /install.sh run && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/*
COPY --from=build /src/build/release/bin/ /usr/local/bin/
# Fails the build, not the first start, if a library is missing.
RUN for program in /usr/local/bin/*; do \
    if ldd "$program" | grep 'not found'; then exit 1; fi; \
  done

USER 10001:10001
VOLUME ["/models"]
# gRPC, metrics
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
# A big model may take minutes to load; failures do not count that long.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
  CMD ["moe-client", "health", "--server=127.0.0.1:50051"]
ENTRYPOINT ["moe-server", "--listen_address=0.0.0.0:50051", "--metrics_address=0.0.0.0:9464"]
CMD ["--model_repository=/models"]
