# The image of mailsvc: `docker compose up` builds and starts it (compose.yaml). What it is made of: docs/operations.md, "Containers".
FROM debian:12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv ca-certificates && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY . .
# The wheel, with the dashboard's npm packages and the documentation site; then an environment with the tested versions of all packages.
RUN python3 -m venv /tools \
    && etc/packages /tools \
    && /tools/bin/pip install --quiet --constraint requirements-dev.lock '.[docs]' \
    && PYTHONPATH=. /tools/bin/python3 etc/site/build.py mailsvc/http/docs_site.zip \
    && etc/wheel /tools/bin/python3 /wheel
RUN python3 -m venv /opt/mailsvc \
    && /opt/mailsvc/bin/pip install --quiet --require-hashes --requirement requirements.lock \
    && /opt/mailsvc/bin/pip install --quiet --no-deps /wheel/*.whl \
    && /opt/mailsvc/bin/pip uninstall --quiet --yes pip setuptools \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/mailsvc/lib/python3.11/site-packages/mailsvc

FROM debian:12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends python3 ca-certificates && rm -rf /var/lib/apt/lists/* \
    && useradd --no-log-init --uid 10001 --home-dir /var/lib/mailsvc --no-create-home --shell /usr/sbin/nologin mailsvc \
    && install -d -o mailsvc -g mailsvc -m 750 /etc/mailsvc \
    && install -d -o mailsvc -g mailsvc -m 700 /etc/mailsvc/tls /var/lib/mailsvc \
    && install -d -o mailsvc -g mailsvc -m 755 /run/mailsvc
COPY --from=build /opt/mailsvc /opt/mailsvc
COPY etc/container/start etc/container/health /usr/local/bin/
ENV PATH=/opt/mailsvc/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    MAILSVC_CONFIG=/etc/mailsvc/mailsvc.toml
WORKDIR /var/lib/mailsvc
USER 10001
EXPOSE 25 465 587 2465 2587 8025
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s CMD ["health"]
CMD ["start"]
