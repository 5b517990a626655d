/* smtpsink - counting SMTP sink for the peer rig (loopback only).
 * Thread per connection, PIPELINING, CHUNKING (a message is one chunk), optional STARTTLS, AUTH accepted blindly.
 * Reads the X-Seq and X-Sent-Ns headers of the load: end-to-end latency, lost and
 * duplicated messages, number with a DKIM-Signature.  Control port (-c):
 *   echo reset | nc ; echo stats | nc   -> one line of JSON.
 * cc -O2 -o smtpsink smtpsink.c -lssl -lcrypto -lpthread
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAXSEQ 4000000
static int port = 2600, cport = 2601, delay_us = 0; static SSL_CTX *ctx; static const char *dumpdir; static int dumpmax = 3;
static pthread_mutex_t mx = PTHREAD_MUTEX_INITIALIZER;
static long count, conns, tlsconns, dkim, dups, uniq, withlat; static unsigned long long bytes; static long long first_ns, last_ns;
static float *lats; static unsigned char *seen; static double cpu0;

static long long realns(void) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); return t.tv_sec * 1000000000LL + t.tv_nsec; }
static double cpu(void) { struct rusage r; getrusage(RUSAGE_SELF, &r); return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6; }
typedef struct { int fd; SSL *ssl; char buf[65536]; int pos, len; char out[2048]; int outn; } C;
static int flushc(C *c) {
  int off = 0; while (off < c->outn) { int k = c->ssl ? SSL_write(c->ssl, c->out + off, c->outn - off) : (int)write(c->fd, c->out + off, c->outn - off); if (k <= 0) return -1; off += k; }
  c->outn = 0; return 0;
}
static void say(C *c, const char *s) { int l = strlen(s); if (c->outn + l > (int)sizeof c->out) flushc(c); memcpy(c->out + c->outn, s, l); c->outn += l; }
static int fill(C *c) {                               /* flush replies only when input is drained: pipelining */
  if (c->outn && flushc(c)) return -1;
  c->pos = 0; c->len = c->ssl ? SSL_read(c->ssl, c->buf, sizeof c->buf) : (int)read(c->fd, c->buf, sizeof c->buf);
  return c->len > 0 ? 0 : -1;
}
static int line(C *c, char *o, int n) {
  int k = 0;
  for (;;) {
    if (c->pos >= c->len && fill(c)) return -1;
    char ch = c->buf[c->pos++]; if (ch == '\n') { if (k && o[k - 1] == '\r') k--; o[k] = 0; return k; }
    if (k < n - 1) o[k++] = ch;
  }
}
static int data(C *c, long left) {                    /* left: octets of a chunk; -1: up to the final dot */
  static const char eod[] = "\r\n.\r\n"; int st = 2; char head[16384]; int hn = 0; unsigned long long b = 0; char *dump = NULL; size_t dn = 0, dc = 0;
  int want = 0; if (dumpdir) { pthread_mutex_lock(&mx); want = count < dumpmax; pthread_mutex_unlock(&mx); }
  for (;;) {
    if (c->pos >= c->len && fill(c)) { free(dump); return -1; }
    int s = c->pos, end = 0;
    char *base = c->buf;
    if (left >= 0) { int k = c->len - c->pos; if (k > left) k = (int)left; c->pos += k; left -= k; end = !left; }
    else for (; c->pos < c->len;) {
      if (st == 0) { char *p = memchr(base + c->pos, '\r', c->len - c->pos); if (!p) { c->pos = c->len; break; } c->pos = p - base + 1; st = 1; continue; }
      char ch = base[c->pos++];
      if (ch == eod[st]) { if (++st == 5) { end = 1; break; } } else st = ch == '\r' ? 1 : 0;
    }
    int n = c->pos - s; b += n;
    if (hn < (int)sizeof head - 1) { int k = n < (int)sizeof head - 1 - hn ? n : (int)sizeof head - 1 - hn; memcpy(head + hn, base + s, k); hn += k; }
    if (want) { if (dn + n > dc) dump = realloc(dump, dc = (dn + n) * 2); memcpy(dump + dn, base + s, n); dn += n; }
    if (end) break;
  }
  long long t = realns(); head[hn] = 0; char *e = strstr(head, "\r\n\r\n"); if (e) *e = 0;
  char *p = strcasestr(head, "X-Sent-Ns: "), *q = strcasestr(head, "X-Seq: "); int sig = strcasestr(head, "DKIM-Signature:") != NULL;
  pthread_mutex_lock(&mx);
  if (want) { char fn[512]; snprintf(fn, sizeof fn, "%s/msg%ld.eml", dumpdir, count); FILE *f = fopen(fn, "wb"); if (f) { fwrite(dump, 1, left < 0 && dn > 3 ? dn - 3 : dn, f); fclose(f); } }
  if (!count) first_ns = t;
  last_ns = t; bytes += b; dkim += sig;
  if (p && count < MAXSEQ) { lats[withlat++] = (t - atoll(p + 11)) / 1e6f; }
  if (q) { long k = atol(q + 7); if (k >= 0 && k < MAXSEQ) { if (seen[k]) dups++; else { seen[k] = 1; uniq++; } } }
  count++;
  pthread_mutex_unlock(&mx);
  free(dump);
  if (delay_us) usleep(delay_us);
  say(c, "250 2.0.0 Ok\r\n"); return 0;
}
static void *serve(void *a) {
  C *c = a; char l[4096];
  pthread_mutex_lock(&mx); conns++; pthread_mutex_unlock(&mx);
  int one = 1; setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  say(c, "220 sink.test ESMTP\r\n");
  while (line(c, l, sizeof l) >= 0) {
    if (!strncasecmp(l, "EHLO", 4)) { say(c, "250-sink.test\r\n250-PIPELINING\r\n250-CHUNKING\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250-SIZE 104857600\r\n250-ENHANCEDSTATUSCODES\r\n"); if (ctx && !c->ssl) say(c, "250-STARTTLS\r\n"); say(c, "250 HELP\r\n"); }
    else if (!strncasecmp(l, "HELO", 4)) say(c, "250 sink.test\r\n");
    else if (!strncasecmp(l, "MAIL", 4)) say(c, "250 2.1.0 Ok\r\n");
    else if (!strncasecmp(l, "RCPT", 4)) say(c, "250 2.1.5 Ok\r\n");
    else if (!strncasecmp(l, "DATA", 4)) { say(c, "354 go\r\n"); if (data(c, -1)) break; }
    else if (!strncasecmp(l, "BDAT", 4)) { char *e; long n = strtol(l + 4, &e, 10); if (n <= 0 || strcasecmp(e, " LAST")) { say(c, "501 5.5.4 one chunk\r\n"); flushc(c); break; } if (data(c, n)) break; }
    else if (!strncasecmp(l, "RSET", 4) || !strncasecmp(l, "NOOP", 4)) say(c, "250 2.0.0 Ok\r\n");
    else if (!strncasecmp(l, "QUIT", 4)) { say(c, "221 2.0.0 Bye\r\n"); flushc(c); break; }
    else if (!strncasecmp(l, "STARTTLS", 8) && ctx) {
      say(c, "220 2.0.0 Ready\r\n"); if (flushc(c)) break;
      c->ssl = SSL_new(ctx); SSL_set_fd(c->ssl, c->fd); c->pos = c->len = 0; if (SSL_accept(c->ssl) != 1) break;
      pthread_mutex_lock(&mx); tlsconns++; pthread_mutex_unlock(&mx);
    } else say(c, "500 5.5.2 what\r\n");
  }
  if (c->ssl) { SSL_free(c->ssl); }
  close(c->fd); free(c); return NULL;
}
static int cmpf(const void *a, const void *b) { float x = *(float *)a, y = *(float *)b; return x < y ? -1 : x > y; }
static void *control(void *a) {
  int s = *(int *)a;
  for (;;) {
    int f = accept(s, NULL, NULL); if (f < 0) continue; char b[64] = ""; int n = read(f, b, 63); if (n < 0) n = 0; b[n] = 0; char o[1024];
    pthread_mutex_lock(&mx);
    if (!strncmp(b, "reset", 5)) { count = conns = tlsconns = dkim = dups = uniq = withlat = 0; bytes = 0; first_ns = last_ns = 0; memset(seen, 0, MAXSEQ); cpu0 = cpu(); n = sprintf(o, "{\"ok\":1}\n"); }
    else if (!strncmp(b, "count", 5)) n = sprintf(o, "%ld\n", count);
    else {
      long k = withlat; float *s2 = malloc(sizeof(float) * (k + 1)); memcpy(s2, lats, sizeof(float) * k); qsort(s2, k, sizeof(float), cmpf);
      n = sprintf(o, "{\"count\":%ld,\"unique\":%ld,\"dups\":%ld,\"conns\":%ld,\"tls\":%ld,\"dkim\":%ld,\"bytes\":%llu,\"first_ns\":%lld,\"last_ns\":%lld,\"sink_cpu_s\":%.3f,\"e2e_ms\":{\"p50\":%.2f,\"p95\":%.2f,\"p99\":%.2f,\"max\":%.2f}}\n",
        count, uniq, dups, conns, tlsconns, dkim, bytes, first_ns, last_ns, cpu() - cpu0, k ? s2[k / 2] : 0, k ? s2[(long)(k * .95)] : 0, k ? s2[(long)(k * .99)] : 0, k ? s2[k - 1] : 0);
      free(s2);
    }
    pthread_mutex_unlock(&mx);
    if (write(f, o, n) < 0) {} close(f);
  }
}
static int everywhere;
static int lis(int p, int all) {
  int s = socket(AF_INET, SOCK_STREAM, 0), one = 1; setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(p)}; if (all) a.sin_addr.s_addr = INADDR_ANY; else inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
  if (bind(s, (void *)&a, sizeof a) || listen(s, 1024)) { perror("listen"); exit(1); } return s;
}
int main(int argc, char **argv) {
  int o; const char *cert = NULL, *key = NULL;
  while ((o = getopt(argc, argv, "p:c:C:K:d:n:D:A")) != -1) switch (o) {
    case 'p': port = atoi(optarg); break; case 'c': cport = atoi(optarg); break; case 'C': cert = optarg; break; case 'K': key = optarg; break;
    case 'd': dumpdir = optarg; break; case 'n': dumpmax = atoi(optarg); break; case 'D': delay_us = atoi(optarg); break; case 'A': everywhere = 1; break;
    default: fprintf(stderr, "smtpsink [-p port] [-c control port] [-C cert -K key: offer STARTTLS] [-d dump dir -n first n messages] [-D usec delay before the final 250] [-A: all of 127.0.0.0/8, hence every address]\n"); return 2; }
  signal(SIGPIPE, SIG_IGN); lats = malloc(sizeof(float) * MAXSEQ); seen = calloc(MAXSEQ, 1);
  if (cert) { ctx = SSL_CTX_new(TLS_server_method()); if (SSL_CTX_use_certificate_chain_file(ctx, cert) != 1 || SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1) { fprintf(stderr, "bad cert\n"); return 1; } }
  int s = lis(port, everywhere), cs = lis(cport, 0); pthread_t t; pthread_create(&t, NULL, control, &cs);
  pthread_attr_t at; pthread_attr_init(&at); pthread_attr_setstacksize(&at, 256 * 1024); pthread_attr_setdetachstate(&at, PTHREAD_CREATE_DETACHED);
  for (;;) { int f = accept(s, NULL, NULL); if (f < 0) continue; C *c = malloc(sizeof *c); c->fd = f; c->ssl = NULL; c->pos = c->len = c->outn = 0; if (pthread_create(&t, &at, serve, c)) { close(f); free(c); } }
}
