#include "request_listener.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <sstream>
#include <string>
#include <string_view>

#include "process.h"
#include "recorder/numbers.h"

namespace sirtaki {
namespace {

// Added to the eventfd: kSignal for each signal, kEnd to stop the thread.
constexpr std::uint64_t kSignal = 1;
constexpr std::uint64_t kEnd = std::uint64_t{1} << 32;
constexpr std::size_t kLongestWord = std::size_t{1} << 18;
constexpr std::size_t kLongestAnswer = 100'000;  // bytes; the kernel takes some 200,000 as one message

using Handler = void (*)(int);

// Globals, since a signal handler can access nothing else.
std::atomic<int> wake_event{-1};
std::atomic<pid_t> owner{0};
std::atomic<Handler> mpis{SIG_DFL};

void on_usr1(int number) {
  const int before = errno;
  if (getpid() == owner.load()) {
    if (::write(wake_event.load(), &kSignal, sizeof(kSignal)) < 0) errno = before;
    if (const Handler handler = mpis.load(); handler != SIG_DFL) handler(number);
  } else {  // a forked child, which is no rank
    signal(number, SIG_DFL);
    raise(number);
  }
  errno = before;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == on_usr1;
}

// Some MPIs install a handler that only counts signals.
bool is_mpis(Handler handler) {
  Dl_info found{};
  if (dladdr(reinterpret_cast<const void*>(handler), &found) == 0 || found.dli_fname == nullptr) return false;
  const std::string_view file = found.dli_fname;
  return file.substr(file.rfind('/') + 1).starts_with("libmpi");
}

void install() {
  struct sigaction action{};
  sigaction(SIGUSR1, nullptr, &action);
  if (is_ours(action)) return;
  mpis = action.sa_handler;
  action = {};
  action.sa_handler = on_usr1;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigaction(SIGUSR1, &action, nullptr);
}

void uninstall() {
  struct sigaction action{};
  sigaction(SIGUSR1, nullptr, &action);
  if (is_ours(action)) signal(SIGUSR1, mpis.load());
}

void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDERR_FILENO, text.data(), text.size());
    if (count < 0 && errno != EINTR) return;
    if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
  }
}

// Lines: kind, rank, host, time, site; then the text.
FailureCause read_cause(const std::string& message) {
  std::istringstream lines(message);
  std::array<std::string, 5> fields;
  for (std::string& field : fields) std::getline(lines, field);
  FailureCause cause;
  cause.kind = failure_kind_of(fields[0]);
  std::from_chars(fields[1].data(), fields[1].data() + fields[1].size(), cause.rank);
  cause.host = fields[2];
  std::from_chars(fields[3].data(), fields[3].data() + fields[3].size(), cause.time);
  cause.site = fields[4];
  cause.text.assign(std::istreambuf_iterator<char>(lines), {});
  return cause;
}

}  // namespace

bool signal_is_free(int number) {
  struct sigaction action{};
  sigaction(number, nullptr, &action);
  if ((action.sa_flags & SA_SIGINFO) != 0) return false;
  return action.sa_handler == SIG_DFL || is_ours(action) || is_mpis(action.sa_handler);
}

RequestListener::RequestListener(std::shared_ptr<Engine> engine, int launcher, bool takes_usr1)
    : engine_(std::move(engine)), launcher_(launcher), takes_usr1_(takes_usr1) {
  if (wake_event.load() < 0) wake_event = eventfd(0, EFD_CLOEXEC);
  owner = getpid();
  if (takes_usr1) install();
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RequestListener::~RequestListener() {
  uninstall();
  if (::write(wake_event.load(), &kEnd, sizeof(kEnd)) < 0) {
    thread_.detach();
    return;
  }
  thread_.join();
}

void RequestListener::run() {
  pthread_setname_np(pthread_self(), "sirtaki-listen");
  std::array<pollfd, 2> sources = {{{wake_event.load(), POLLIN, 0}, {launcher_, POLLIN, 0}}};
  while (true) {
    if (poll(sources.data(), sources.size(), -1) < 0 && errno != EINTR) return;
    if ((sources[1].revents != 0) && !on_launcher()) sources[1].fd = -1;
    if ((sources[0].revents & POLLIN) == 0) continue;
    std::uint64_t count = 0;
    if (read(wake_event.load(), &count, sizeof(count)) < 0) continue;
    if (count >= kEnd) return;
    on_signal();
  }
}

void RequestListener::on_signal() {
  const std::string who = "rank " + std::to_string(engine_->topology().rank);
  write_all("sirtaki: status of the job at " + time_of_day(wall_clock()) + ", requested by SIGUSR1 to " + who + ":\n" +
            engine_->job_status() + "\n");
}

// Passes on a signal from the launcher, unless the program has no handler and would die of it. MPI may have replaced
// the program's handler for SIGUSR1 by its own, which calls the program's.
void RequestListener::pass_on(int number) {
  const bool has_handler = number == SIGUSR1 && !takes_usr1_;
  if (has_handler || !signal_is_free(number)) {
    kill(getpid(), number);
    return;
  }
  const std::array<char, 2> answer = {'S', static_cast<char>(number)};
  send(launcher_, answer.data(), answer.size(), MSG_NOSIGNAL);
}

// False if the launcher has ended.
bool RequestListener::on_launcher() {
  std::string message(kLongestWord, '\0');
  const ssize_t count = recv(launcher_, message.data(), message.size(), MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  message.resize(static_cast<std::size_t>(count));
  if (message[0] == 'A') {
    const std::string answer = "P" + engine_->report();
    send(launcher_, answer.data(), std::min(answer.size(), kLongestAnswer), MSG_NOSIGNAL);
  } else if (message[0] == 'R') {
    StepWatch* const watch = find_step_watch();
    const std::string answer = "R" + (watch == nullptr ? "" : numbers_of(*watch, engine_->statistics().bytes));
    send(launcher_, answer.data(), std::min(answer.size(), kLongestAnswer), MSG_NOSIGNAL);
  } else if (message[0] == 'S' && message.size() == 2) {
    pass_on(message[1]);
  } else if (message[0] == 'H') {
    put_notice(message.substr(1));
  } else if (message[0] == 'F') {
    try {
      engine_->fail_job(read_cause(message.substr(1)));
    } catch (const Error&) {  // from a launcher of another version; the rank is ended in any case
    }
  }
  return true;
}

}  // namespace sirtaki
