// The relay of slow_proxy.py: TCP on 127.0.0.1, one thread, bytes of answers are moved by splice() and not copied.
//
//   slow_proxy HOST_PORT LATENCY_S BYTES_PER_S SLOW_SHARE SLOW_S
//
// prints the port that it listens on, and ends when stdin does. What clients send is requests of HTTP/1.1, one at a time
// on a connection: what is read at once is a request, and is held back for the latency; so is the first request of a
// connection, once more. SLOW_SHARE of all requests are held back for SLOW_S more, evenly spread: of 0.01 every 100th.
// Answers of all connections share BYTES_PER_S (0: no limit).

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <arpa/inet.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { kMaxConnections = 4096, kRequestBytes = 1 << 16, kPipeBytes = 1 << 18 };
// Of a limit, answers may be so much ahead: epoll counts milliseconds.
static const double kBurstS = 0.005;

struct connection {
  int client, server;     // sockets; -1: the entry is free
  int pipe[2];            // from the server to the client
  size_t in_pipe;         // bytes
  bool server_ended;
  double due;             // when `request` is sent, or a new connection is read from
  size_t request_bytes;   // 0: none is held back
  bool is_new;
  uint32_t client_wants, server_wants;
  char request[kRequestBytes];
};

static struct connection* connections[kMaxConnections];
static int num_connections, poller;
static double latency_s, bytes_per_s, slow_share, slow_s, free_at, slow_sum;

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fail(const char* what) {
  perror(what);
  exit(1);
}

// Sockets are told apart by the lowest bit of what epoll keeps: a connection is aligned.
static void want(struct connection* c, bool is_client, uint32_t events) {
  uint32_t* old = is_client ? &c->client_wants : &c->server_wants;
  if (*old == events) return;
  struct epoll_event e = {.events = events, .data.u64 = (uint64_t)(uintptr_t)c | is_client};
  if (epoll_ctl(poller, EPOLL_CTL_MOD, is_client ? c->client : c->server, &e)) fail("epoll_ctl");
  *old = events;
}

static void drop(struct connection* c) {
  close(c->client);
  close(c->server);
  close(c->pipe[0]);
  close(c->pipe[1]);
  c->client = -1;  // freed by the caller of the events, behind which others of this connection may stand
}

static void add(int client, const struct sockaddr_in* address) {
  struct connection* c = calloc(1, sizeof *c);
  if (!c) fail("calloc");
  const int one = 1;
  c->client = client;
  c->server = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (c->server < 0) fail("socket");
  if (pipe2(c->pipe, O_NONBLOCK | O_CLOEXEC)) fail("pipe2");
  fcntl(c->pipe[0], F_SETPIPE_SZ, kPipeBytes);  // without the right to it, pipes stay small
  setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(c->server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (connect(c->server, (const struct sockaddr*)address, sizeof *address) && errno != EINPROGRESS) fail("connect");
  c->due = now_s() + latency_s;
  c->is_new = true;
  struct epoll_event e = {.events = 0, .data.u64 = (uint64_t)(uintptr_t)c | 1};
  if (epoll_ctl(poller, EPOLL_CTL_ADD, client, &e)) fail("epoll_ctl");
  e.data.u64 &= ~(uint64_t)1;
  if (epoll_ctl(poller, EPOLL_CTL_ADD, c->server, &e)) fail("epoll_ctl");
  connections[num_connections++] = c;
}

// Take what the client has sent, and say when it may go on.
static bool take_request(struct connection* c) {
  const ssize_t n = read(c->client, c->request, sizeof c->request);
  if (n == 0) return false;
  if (n < 0) return errno == EAGAIN;
  c->request_bytes = (size_t)n;
  double wait = latency_s;
  slow_sum += slow_share;
  if (slow_sum >= 1) {
    slow_sum -= 1;
    wait += slow_s;
  }
  c->due = now_s() + wait;
  want(c, true, 0);
  return true;
}

// Send what was held back, and read the answer. Requests are small: a socket that takes none of it is broken.
static bool pass_request(struct connection* c) {
  const ssize_t n = write(c->server, c->request, c->request_bytes);
  if (n < 0 && errno == EAGAIN) {
    c->due += 0.001;
    return true;
  }
  if (n != (ssize_t)c->request_bytes) return false;
  c->request_bytes = 0;
  want(c, true, EPOLLIN);
  want(c, false, EPOLLIN);
  return true;
}

// Move bytes of the answer, as far as the limit allows; false: the connection has ended.
static bool move_answer(struct connection* c) {
  if (!c->in_pipe && !c->server_ended) {
    size_t most = kPipeBytes;
    if (bytes_per_s > 0) {
      const double now = now_s();
      if (free_at < now - kBurstS) free_at = now - kBurstS;
      if (free_at > now) return true;  // it is asked again when the time has come
    }
    const ssize_t n = splice(c->server, NULL, c->pipe[1], NULL, most, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    if (n == 0) c->server_ended = true;
    if (n < 0 && errno != EAGAIN) return false;
    if (n > 0) {
      c->in_pipe = (size_t)n;
      if (bytes_per_s > 0) free_at += (double)n / bytes_per_s;
    }
  }
  if (c->in_pipe) {
    const ssize_t n = splice(c->pipe[0], NULL, c->client, NULL, c->in_pipe, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    if (n < 0 && errno != EAGAIN) return false;
    if (n > 0) c->in_pipe -= (size_t)n;
  }
  if (c->server_ended && !c->in_pipe) return false;
  const uint32_t held = c->request_bytes ? 0 : EPOLLIN;
  want(c, true, c->in_pipe ? held | EPOLLOUT : held);
  want(c, false, c->in_pipe ? 0 : EPOLLIN);
  return true;
}

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
  if (inet_pton(AF_INET, argv[1], &server.sin_addr) != 1) return 2;
  latency_s = atof(argv[3]);
  bytes_per_s = atof(argv[4]);
  slow_share = atof(argv[5]);
  slow_s = atof(argv[6]);
  signal(SIGPIPE, SIG_IGN);  // a client may leave in the middle of an answer

  struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof here;
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener < 0 || bind(listener, (struct sockaddr*)&here, length) || listen(listener, 1024) ||
      getsockname(listener, (struct sockaddr*)&here, &length))
    fail("listen");
  poller = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event e = {.events = EPOLLIN, .data.u64 = 0};
  if (epoll_ctl(poller, EPOLL_CTL_ADD, listener, &e)) fail("epoll_ctl");
  e.data.u64 = 1;
  if (epoll_ctl(poller, EPOLL_CTL_ADD, STDIN_FILENO, &e)) fail("stdin must be a pipe");
  printf("%d\n", ntohs(here.sin_port));
  fflush(stdout);

  for (;;) {
    // Until the first request is due, or the limit lets the next bytes pass.
    const double begin = now_s();
    double next = INFINITY;
    const bool is_limited = bytes_per_s > 0 && free_at > begin;
    if (is_limited) next = free_at;
    for (int i = 0; i < num_connections; ++i)
      if ((connections[i]->is_new || connections[i]->request_bytes) && connections[i]->due < next)
        next = connections[i]->due;
    const double left_s = next - begin;
    const int64_t nanoseconds = left_s <= 0 ? 0 : left_s > 60 ? 60000000000 : (int64_t)(left_s * 1e9) + 1000;
    const struct timespec wait = {.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000};
    struct epoll_event events[256];
    // While the limit is used up, sockets that have bytes would wake us again and again: sleep before they are asked.
    if (is_limited && left_s > 0) nanosleep(&wait, NULL);
    const int n = epoll_pwait2(poller, events, 256, is_limited ? &(struct timespec){0, 0} : &wait, NULL);
    if (n < 0 && errno != EINTR) fail("epoll_pwait2");

    for (int i = 0; i < n; ++i) {
      if (events[i].data.u64 == 1) return 0;
      if (events[i].data.u64 == 0) {
        int client;
        while (num_connections < kMaxConnections &&
               (client = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
          add(client, &server);
        continue;
      }
      struct connection* c = (struct connection*)(uintptr_t)(events[i].data.u64 & ~(uint64_t)1);
      if (c->client < 0) continue;
      const bool is_client = events[i].data.u64 & 1;
      const uint32_t what = events[i].events;
      bool goes_on = true;
      if (is_client && (what & (EPOLLERR | EPOLLHUP))) goes_on = false;
      if (goes_on && is_client && (what & EPOLLIN) && !c->request_bytes) goes_on = take_request(c);
      if (goes_on && ((is_client && (what & EPOLLOUT)) || (!is_client && (what & (EPOLLIN | EPOLLHUP | EPOLLERR)))))
        goes_on = move_answer(c);
      if (!goes_on) drop(c);
    }
    const double now = now_s();
    int kept = 0;
    for (int i = 0; i < num_connections; ++i) {
      struct connection* c = connections[i];
      if (c->client >= 0 && c->due <= now) {
        if (c->is_new) {
          c->is_new = false;
          want(c, true, EPOLLIN);
        } else if (c->request_bytes && !pass_request(c)) {
          drop(c);
        }
      }
      if (c->client < 0)
        free(c);
      else
        connections[kept++] = c;
    }
    num_connections = kept;
  }
}
