//! Dockerfile of the container image for GKE and Vertex AI. The image has not been built in development, where no
//! container engine was available.

use super::generated_file::GeneratedFile;

const DOCKERFILE: &str =
    "# Container image with the program and libtpu. Put the program `systole` for Linux on x86-64 next to this file, then run:
#
#   docker build -t IMAGE . && docker push IMAGE
#
# This Dockerfile has not been tested: no container engine was available in development.
FROM python:3.12-slim
COPY systole /usr/local/bin/systole
ENV SYSTOLE_CACHE=/opt/systole
# Downloads Google's libtpu and checks its hash.
RUN systole setup tpu && systole --version
";

pub(super) fn dockerfile() -> GeneratedFile {
    GeneratedFile::new("Dockerfile", "the container image", DOCKERFILE.into())
}
