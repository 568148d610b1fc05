# pride on Debian 12, on the CPU: program, libraries, headers, pages.
# SPDX-License-Identifier: Apache-2.0
#
#     docker build -t pride . && docker run --rm -v "$PWD:/work" pride train --out runs/first
#
# Not built by pride's tests, which have no Docker daemon: scripts/package.sh --try takes the same
# steps in a clean Debian 12 made by debootstrap.
FROM debian:12 AS build
WORKDIR /pride
COPY . .
RUN apt-get update && scripts/setup.sh && scripts/package.sh

FROM debian:12-slim
COPY --from=build /pride/build/release/package/*.deb /tmp/
RUN apt-get update \
    && apt-get install -y --no-install-recommends /tmp/*.deb libopenblas0-pthread openmpi-bin openssh-client \
    && rm -rf /tmp/*.deb /var/lib/apt/lists/*
# a container's only user is root
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
WORKDIR /work
ENTRYPOINT ["pride"]
