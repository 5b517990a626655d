"""What operators see of the service: logs, metrics, readiness, the doctor's checks, the control socket, the first page of the console."""
