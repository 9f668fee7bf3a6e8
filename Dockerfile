# The web viewer and the JSON API: docker build -t llmviewer . && docker run --rm -p 8050:8050 llmviewer
FROM python:3.13-slim
WORKDIR /app
COPY . .
RUN pip install --no-cache-dir '.[web]' && useradd --no-create-home viewer
USER viewer
EXPOSE 8050
CMD ["llmviewer", "serve", "--host", "0.0.0.0", "--port", "8050", "--workers", "2"]
