//! The container image that GKE and Vertex AI start: its Dockerfile. Nobody has built it here: there is no engine for containers.

use super::generated_file::GeneratedFile;

const DOCKERFILE: &str =
    "# The program and libtpu. Put the program `systole`, for Linux on x86-64, beside this file, then:
#
#   docker build -t IMAGE . && docker push IMAGE
#
# It has not been built where this was written: there was no engine for containers.
FROM python:3.12-slim
COPY systole /usr/local/bin/systole
ENV SYSTOLE_CACHE=/opt/systole
# Fetches Google's libtpu and checks its hash.
RUN systole setup tpu && systole --version
";

pub(super) fn dockerfile() -> GeneratedFile {
    GeneratedFile::new("Dockerfile", "the image", DOCKERFILE.into())
}
