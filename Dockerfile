# The stage for a binary built on the host comes first: `make image`
# needs no base image and no network. `docker build .` builds from source.
FROM scratch AS prebuilt
ARG VERSION=dev
LABEL org.opencontainers.image.title="balefire" \
      org.opencontainers.image.description="A node of a balefire mesh, which hands tasks to other machines over any network" \
      org.opencontainers.image.source="https://github.com/balefire/balefire" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY --chown=65532:65532 dist/data /var/lib/balefire
COPY dist/balefire-node /balefire-node
ENV HOME=/var/lib/balefire TMPDIR=/var/lib/balefire BALEFIRE_DIR=/var/lib/balefire
USER 65532:65532
VOLUME /var/lib/balefire
EXPOSE 4001/tcp 4001/udp
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s CMD ["/balefire-node", "health"]
ENTRYPOINT ["/balefire-node"]
CMD ["run"]

# A node or a router of the lab: docs/lab.md.
FROM prebuilt AS lab
COPY dist/netlab /netlab
COPY --chown=65532:65532 dist/data /tickets
ENTRYPOINT ["/netlab"]

FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
COPY third_party third_party
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.linked=$VERSION" -o /out/balefire-node ./cmd/balefire-node && \
    CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o /out/netlab ./internal/lab/netlab && mkdir -p /out/data && touch /out/data/.keep

FROM scratch AS bare
ARG VERSION=dev
LABEL org.opencontainers.image.title="balefire" \
      org.opencontainers.image.description="A node of a balefire mesh, which hands tasks to other machines over any network" \
      org.opencontainers.image.source="https://github.com/balefire/balefire" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY --from=build --chown=65532:65532 /out/data /var/lib/balefire
COPY --from=build /out/balefire-node /balefire-node
ENV HOME=/var/lib/balefire TMPDIR=/var/lib/balefire BALEFIRE_DIR=/var/lib/balefire
USER 65532:65532
VOLUME /var/lib/balefire
EXPOSE 4001/tcp 4001/udp
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s CMD ["/balefire-node", "health"]
ENTRYPOINT ["/balefire-node"]
CMD ["run"]

FROM bare AS lab-source
COPY --from=build /out/netlab /netlab
COPY --from=build --chown=65532:65532 /out/data /tickets
ENTRYPOINT ["/netlab"]

FROM bare AS release
