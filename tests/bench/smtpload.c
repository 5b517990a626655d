/* smtpload - a load over SMTP, on loopback: one thread a session, blocking I/O,
 * STARTTLS or implicit TLS, AUTH PLAIN, PIPELINING, kept connections or a new one
 * for each mail, as fast as it goes or at a given rate.
 * Every mail begins with "X-Seq: <n>" and "X-Sent-Ns: <unix time in ns>", by which
 * smtpsink knows what is lost, what is doubled and how long it took.
 * Prints one line of JSON.
 * cc -O2 -o smtpload smtpload.c -lssl -lcrypto -lpthread
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char *host = "127.0.0.1", *from = "bench@sender.test", *to = "rcpt%d@example.test";
static const char *user, *pass, *file;
static int port = 2525, sessions = 10, total = 1000, first = 0, perconn = 0, pipelining = 0, starttls = 0, tls = 0;
static long size = 4096; static double rate = 0, maxsecs = 120;
static char *body; static size_t bodylen;
static atomic_int next_seq, ok, errors, conns;
static double *lat_data, *lat_txn;           /* seconds, indexed by seq */
static SSL_CTX *ctx; static char authline[512];
static double t0; static volatile int stop;
static char firsterr[512]; static pthread_mutex_t errmx = PTHREAD_MUTEX_INITIALIZER;

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static long long realns(void) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); return t.tv_sec * 1000000000LL + t.tv_nsec; }

typedef struct { int fd; SSL *ssl; char buf[8192]; int len; } Conn;

static int rawread(Conn *c, char *b, int n) { return c->ssl ? SSL_read(c->ssl, b, n) : (int)read(c->fd, b, n); }
static int wr(Conn *c, const char *b, size_t n) {
  while (n) {
    int k = c->ssl ? SSL_write(c->ssl, b, n > 1 << 20 ? 1 << 20 : (int)n) : (int)write(c->fd, b, n);
    if (k <= 0) return -1;
    b += k; n -= k;
  }
  return 0;
}
static void seterr(const char *what, const char *line) {
  pthread_mutex_lock(&errmx);
  if (!firsterr[0]) snprintf(firsterr, sizeof firsterr, "%s: %s", what, line);
  for (char *p = firsterr; *p; p++) if (*p == '"' || *p == '\\' || *p < 32) *p = ' ';
  pthread_mutex_unlock(&errmx);
}
/* read one (possibly multi-line) reply, return the code, or -1 */
static int reply(Conn *c, char *out, int outn) {
  for (;;) {
    char *nl;
    while ((nl = memchr(c->buf, '\n', c->len))) {
      int l = nl - c->buf + 1, last = l >= 4 && c->buf[3] != '-', code = atoi(c->buf);
      if (out) { int n = l < outn ? l : outn - 1; memcpy(out, c->buf, n); out[n] = 0; }
      memmove(c->buf, c->buf + l, c->len - l); c->len -= l;
      if (last) return code;
    }
    if (c->len >= (int)sizeof c->buf) return -1;
    int k = rawread(c, c->buf + c->len, sizeof c->buf - c->len);
    if (k <= 0) return -1;
    c->len += k;
  }
}
static int cmd(Conn *c, const char *s, int want, const char *what) {
  char line[600] = "";
  if (s && wr(c, s, strlen(s))) { seterr(what, "write failed"); return -1; }
  int r = reply(c, line, sizeof line);
  if (r != want) { if (!stop) seterr(what, r < 0 ? "connection lost" : line); return -1; }
  return 0;
}
static void closeconn(Conn *c, int quit) {
  if (c->fd < 0) return;
  if (quit) cmd(c, "QUIT\r\n", 221, "QUIT");
  if (c->ssl) { SSL_free(c->ssl); c->ssl = NULL; }
  close(c->fd); c->fd = -1; c->len = 0;
}
static int starttlsnow(Conn *c) {
  c->ssl = SSL_new(ctx); SSL_set_fd(c->ssl, c->fd);
  if (SSL_connect(c->ssl) != 1) { seterr("TLS", "handshake failed"); return -1; }
  return 0;
}
static int openconn(Conn *c) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
  inet_pton(AF_INET, host, &a.sin_addr);
  c->len = 0; c->ssl = NULL; c->fd = socket(AF_INET, SOCK_STREAM, 0);
  int one = 1; setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  struct timeval tv = {30, 0}; setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv); setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
  if (connect(c->fd, (void *)&a, sizeof a)) { seterr("connect", strerror(errno)); goto bad; }
  atomic_fetch_add(&conns, 1);
  if (tls && starttlsnow(c)) goto bad;
  if (cmd(c, NULL, 220, "banner")) goto bad;
  if (cmd(c, "EHLO load.test\r\n", 250, "EHLO")) goto bad;
  if (starttls) {
    if (cmd(c, "STARTTLS\r\n", 220, "STARTTLS") || starttlsnow(c)) goto bad;
    if (cmd(c, "EHLO load.test\r\n", 250, "EHLO2")) goto bad;
  }
  if (user && cmd(c, authline, 235, "AUTH")) goto bad;
  return 0;
bad:
  closeconn(c, 0); return -1;
}
static int send_one(Conn *c, int seq, double sched) {
  char env[1024], rcpt[256], hdr[256];
  snprintf(rcpt, sizeof rcpt, to, (first + seq) % 1000);
  double a = sched > 0 ? sched : now();
  if (pipelining) {
    snprintf(env, sizeof env, "MAIL FROM:<%s>\r\nRCPT TO:<%s>\r\nDATA\r\n", from, rcpt);
    if (cmd(c, env, 250, "MAIL") || cmd(c, NULL, 250, "RCPT") || cmd(c, NULL, 354, "DATA")) return -1;
  } else {
    snprintf(env, sizeof env, "MAIL FROM:<%s>\r\n", from);
    if (cmd(c, env, 250, "MAIL")) return -1;
    snprintf(env, sizeof env, "RCPT TO:<%s>\r\n", rcpt);
    if (cmd(c, env, 250, "RCPT") || cmd(c, "DATA\r\n", 354, "DATA")) return -1;
  }
  long long ns = realns() - (sched > 0 ? (long long)((now() - sched) * 1e9) : 0);
  int h = snprintf(hdr, sizeof hdr, "X-Seq: %d\r\nX-Sent-Ns: %lld\r\n", first + seq, ns);
  double d = now();
  if (bodylen < 256 * 1024) {                       /* one write */
    char *m = malloc(h + bodylen); memcpy(m, hdr, h); memcpy(m + h, body, bodylen);
    int bad = wr(c, m, h + bodylen); free(m);
    if (bad) { seterr("body", "write failed"); return -1; }
  } else if (wr(c, hdr, h) || wr(c, body, bodylen)) { seterr("body", "write failed"); return -1; }
  if (cmd(c, NULL, 250, "dot")) return -1;
  double e = now();
  lat_data[seq] = e - (sched > 0 ? sched : d); lat_txn[seq] = e - a;
  return 0;
}
static void *worker(void *arg) {
  Conn c = {.fd = -1}; int used = 0; (void)arg;
  while (!stop) {
    int seq = atomic_fetch_add(&next_seq, 1);
    if (seq >= total) break;
    double sched = 0;
    if (rate > 0) {
      sched = t0 + seq / rate; double w = sched - now();
      if (w > 0) { struct timespec ts = {(time_t)w, (long)((w - (time_t)w) * 1e9)}; nanosleep(&ts, NULL); }
    }
    if (now() - t0 > maxsecs) { stop = 1; break; }
    if (c.fd < 0) { if (openconn(&c)) { atomic_fetch_add(&errors, 1); continue; } used = 0; }
    if (send_one(&c, seq, sched)) { atomic_fetch_add(&errors, 1); closeconn(&c, 0); continue; }
    atomic_fetch_add(&ok, 1); used++;
    if (perconn && used >= perconn) closeconn(&c, 1);
  }
  closeconn(&c, 1);
  return NULL;
}
static int cmpd(const void *a, const void *b) { double x = *(double *)a, y = *(double *)b; return x < y ? -1 : x > y; }
static void pct(const char *name, double *v, int n) {
  int k = 0; double *s = malloc(sizeof(double) * (n + 1));
  for (int i = 0; i < n; i++) if (v[i] > 0) s[k++] = v[i];
  qsort(s, k, sizeof *s, cmpd);
  printf(",\"%s_ms\":{\"p50\":%.2f,\"p95\":%.2f,\"p99\":%.2f,\"max\":%.2f}", name,
         k ? s[k / 2] * 1e3 : 0, k ? s[(int)(k * .95)] * 1e3 : 0, k ? s[(int)(k * .99)] * 1e3 : 0, k ? s[k - 1] * 1e3 : 0);
  free(s);
}
int main(int argc, char **argv) {
  int o;
  while ((o = getopt(argc, argv, "H:p:s:m:o:k:l:F:f:t:u:w:PSTr:x:")) != -1) switch (o) {
    case 'H': host = optarg; break; case 'p': port = atoi(optarg); break;
    case 's': sessions = atoi(optarg); break; case 'm': total = atoi(optarg); break; case 'o': first = atoi(optarg); break;
    case 'k': perconn = atoi(optarg); break; case 'l': size = atol(optarg); break;
    case 'F': file = optarg; break; case 'f': from = optarg; break; case 't': to = optarg; break;
    case 'u': user = optarg; break; case 'w': pass = optarg; break; case 'P': pipelining = 1; break;
    case 'S': starttls = 1; break; case 'T': tls = 1; break; case 'r': rate = atof(optarg); break;
    case 'x': maxsecs = atof(optarg); break;
    default: fprintf(stderr,
      "smtpload [-H host] [-p port] [-s sessions] [-m messages] [-o number of the first] [-k msgs per connection, 0=reuse]\n"
      "  [-F message file (LF or CRLF) | -l body bytes] [-f from] [-t 'rcpt%%d@dom'] [-u user -w pass]\n"
      "  [-P pipelining] [-S starttls | -T implicit tls] [-r msgs/s open loop] [-x max seconds]\n"); return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  if (file) {                                      /* normalise to CRLF, dot-stuff */
    FILE *f = fopen(file, "rb"); if (!f) { perror(file); return 1; }
    fseek(f, 0, SEEK_END); long n = ftell(f); rewind(f);
    char *raw = malloc(n + 1); n = fread(raw, 1, n, f); fclose(f);
    body = malloc(n * 2 + 16); int bol = 1;
    for (long i = 0; i < n; i++) {
      if (bol && raw[i] == '.') body[bodylen++] = '.';
      if (raw[i] == '\n' && (i == 0 || raw[i - 1] != '\r')) body[bodylen++] = '\r';
      body[bodylen++] = raw[i]; bol = raw[i] == '\n';
    }
    if (!bol) { body[bodylen++] = '\r'; body[bodylen++] = '\n'; }
    free(raw);
  } else {
    body = malloc(size + 1024);
    bodylen = sprintf(body, "From: <%s>\r\nTo: <rcpt@example.test>\r\nSubject: load\r\n"
      "Date: Fri, 20 Nov 2026 12:00:00 +0000\r\nMIME-Version: 1.0\r\nContent-Type: text/plain\r\n\r\n", from);
    while ((long)bodylen < size - 78) { memset(body + bodylen, 'x', 76); memcpy(body + bodylen + 76, "\r\n", 2); bodylen += 78; }
  }
  memcpy(body + bodylen, ".\r\n", 3); bodylen += 3;
  if (user) {
    unsigned char p[300]; int l = 0; p[l++] = 0; l += sprintf((char *)p + l, "%s", user); p[l++] = 0; l += sprintf((char *)p + l, "%s", pass ? pass : "");
    strcpy(authline, "AUTH PLAIN "); int n = EVP_EncodeBlock((unsigned char *)authline + 11, p, l); strcpy(authline + 11 + n, "\r\n");
  }
  if (tls || starttls) { ctx = SSL_CTX_new(TLS_client_method()); SSL_CTX_set_verify(ctx, SSL_VERIFY_NONE, NULL); SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF); }
  lat_data = calloc(total + 1, sizeof(double)); lat_txn = calloc(total + 1, sizeof(double));
  pthread_t *th = malloc(sizeof *th * sessions);
  pthread_attr_t at; pthread_attr_init(&at); pthread_attr_setstacksize(&at, 256 * 1024);
  long long start_ns = realns(); t0 = now();
  for (int i = 0; i < sessions; i++) pthread_create(&th[i], &at, worker, NULL);
  for (int i = 0; i < sessions; i++) pthread_join(th[i], NULL);
  double wall = now() - t0; struct rusage ru; getrusage(RUSAGE_SELF, &ru);
  double cpu = ru.ru_utime.tv_sec + ru.ru_stime.tv_sec + (ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) / 1e6;
  printf("{\"sent\":%d,\"errors\":%d,\"conns\":%d,\"bytes\":%zu,\"sessions\":%d,\"start_ns\":%lld,\"wall_s\":%.4f,\"accept_rate\":%.1f,\"client_cpu_s\":%.3f",
         ok, errors, conns, bodylen, sessions, start_ns, wall, ok / wall, cpu);
  pct("lat_data", lat_data, total); pct("lat_txn", lat_txn, total);
  printf(",\"first_error\":\"%s\"}\n", firsterr);
  return errors ? 1 : 0;
}
