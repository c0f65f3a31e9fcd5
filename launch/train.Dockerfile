# A training in a container: the image of `limba launch --to jobset|slurm-container|vertex`. In a clone:
#   docker build -f launch/train.Dockerfile --build-arg ACCELERATOR=tpu -t IMAGE .        (cuda, cpu)
#   docker run IMAGE bash launch/worker.sh RECIPE [limba train options]
FROM python:3.12-slim

ARG ACCELERATOR=cpu
# What launch/worker.sh calls and this base lacks.
RUN apt-get update && apt-get install -y --no-install-recommends curl git procps && rm -rf /var/lib/apt/lists/*
WORKDIR /limba
COPY pyproject.toml setup.py README.md LICENSE ./
COPY limba limba
COPY tasks tasks
COPY convert convert
COPY gin gin
COPY launch launch
ENV LIMBA_ACCELERATOR=$ACCELERATOR
RUN bash launch/worker.sh --setup
# Nothing is installed at a start, also where a clone of this commit is mounted elsewhere.
ENV VENV=/limba/.venv LOCK=none
CMD ["bash", "launch/worker.sh", "--help"]
