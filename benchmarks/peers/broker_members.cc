// The original Broker from C++: events one to one and ping-pong, driven as benchmarks/link.py describes.
//
// Build it against an installed or built Broker, and name it in CHAPPE_BROKER_MEMBERS:
//
//   c++ -std=c++20 -O2 -o broker_members benchmarks/peers/broker_members.cc -IINCLUDES -LLIBRARIES -lbroker
//
// An original that is sent more than its buffer for a peer holds disconnects, so that buffer is made large, and the
// sender keeps at most WINDOW events on their way, which the receiver confirms.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "broker/broker.hh"
#include "broker/publisher.hh"
#include "broker/variant_list.hh"

namespace {

using namespace std::chrono_literals;

constexpr size_t WINDOW = 16'384;
constexpr size_t BUFFER = 1 << 20;
constexpr size_t TAKE = 4'096;
constexpr size_t BATCH = 512;
const std::string TEXT(100, 'x');

int64_t now_ns(clockid_t clock = CLOCK_MONOTONIC) {
  timespec found;
  clock_gettime(clock, &found);
  return int64_t{found.tv_sec} * 1'000'000'000 + found.tv_nsec;
}

// The number that follows a name in a line of JSON; 0 if it is not there.
uint64_t number(const std::string& line, const std::string& name) {
  auto at = line.find('"' + name + '"');
  if (at == std::string::npos)
    return 0;
  at = line.find_first_of("0123456789", at + name.size() + 2);
  return at == std::string::npos ? 0 : std::strtoull(line.c_str() + at, nullptr, 10);
}

struct Meter {
  int64_t start = now_ns();
  int64_t cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);

  std::string facts() const {
    return "\"start\": " + std::to_string(start) + ", \"end\": " + std::to_string(now_ns())
           + ", \"cpu_s\": " + std::to_string((now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / 1e9);
  }
};

void say(const std::string& facts) {
  std::cout << '{' << facts << '}' << std::endl;
}

broker::endpoint make_endpoint() {
  broker::broker_options options;
  options.disable_ssl = true;
  options.ignore_broker_conf = true;
  options.peer_buffer_size = BUFFER;
  return broker::endpoint{broker::configuration{options}};
}

broker::data event(uint64_t count) {
  return broker::vector{broker::count{count}, TEXT};
}

uint64_t first(const broker::data_message& message) {
  return message->value().to_list().at(0).to_count();
}

// A message at a time as long as some are there; the sum of what they have first.
template <class Each>
uint64_t take(broker::subscriber& from, uint64_t count, Each each) {
  uint64_t total = 0;
  while (count > 0) {
    auto found = from.get(std::min<uint64_t>(count, TAKE));
    for (auto& message : found)
      total += first(message);
    count -= found.size();
    each(found.size());
  }
  return total;
}

template <class Order>
void orders(Order order) {
  for (std::string line; std::getline(std::cin, line);)
    order(line);
}

void receiver() {
  auto endpoint = make_endpoint();
  auto events = endpoint.make_subscriber({"/benchmark"}, BUFFER);
  say("\"port\": " + std::to_string(endpoint.listen("127.0.0.1", 0)));
  uint64_t taken = 0;
  orders([&](const std::string& line) {
    Meter meter;
    auto total = take(events, number(line, "count"), [&](size_t count) {
      auto before = taken;
      taken += count;
      if (taken * 4 / WINDOW > before * 4 / WINDOW)
        endpoint.publish("/back", event(taken));
    });
    say("\"total\": " + std::to_string(total) + ", " + meter.facts());
  });
}

void sender(const std::string& options) {
  auto endpoint = make_endpoint();
  auto publisher = endpoint.make_publisher("/benchmark");
  auto confirmed = endpoint.make_subscriber({"/back"}, BUFFER);
  endpoint.peer("127.0.0.1", number(options, "ports"));
  std::this_thread::sleep_for(500ms); // it does not say when it knows who wants something
  say("\"ready\": true");
  uint64_t published = 0, taken = 0;
  orders([&](const std::string& line) {
    Meter meter;
    std::vector<broker::data> events; // leave together, which is the original's fastest way
    for (uint64_t each = 0, count = number(line, "count"); each < count; ++each) {
      events.push_back(event(each));
      if (events.size() < BATCH && each + 1 < count)
        continue;
      while (published + events.size() - taken > WINDOW)
        taken = std::max(taken, first(confirmed.get()));
      published += events.size();
      publisher.publish(std::move(events));
      events.clear();
    }
    say(meter.facts());
  });
}

void echo() {
  auto endpoint = make_endpoint();
  auto events = endpoint.make_subscriber({"/benchmark"});
  say("\"port\": " + std::to_string(endpoint.listen("127.0.0.1", 0)));
  for (;;)
    endpoint.publish("/pong", event(first(events.get())));
}

void pinger(const std::string& options) {
  auto endpoint = make_endpoint();
  auto pongs = endpoint.make_subscriber({"/pong"});
  endpoint.peer("127.0.0.1", number(options, "ports"));
  std::this_thread::sleep_for(500ms);
  say("\"ready\": true");
  orders([&](const std::string& line) {
    Meter meter;
    std::vector<double> us;
    for (uint64_t each = 0, count = number(line, "count"); each < count; ++each) {
      auto sent = now_ns();
      endpoint.publish("/benchmark", event(each));
      if (first(pongs.get()) != each) {
        std::cerr << "a pong is missing" << std::endl;
        std::exit(1);
      }
      us.push_back((now_ns() - sent) / 1e3);
    }
    std::sort(us.begin(), us.end());
    say(meter.facts() + ", \"p50_us\": " + std::to_string(us[us.size() / 2]) + ", \"p99_us\": "
        + std::to_string(us[us.size() * 99 / 100]));
  });
}

} // namespace

int main(int argc, char** argv) {
  broker::endpoint::system_guard guard;
  std::string role = argc > 1 ? argv[1] : "", options = argc > 2 ? argv[2] : "";
  if (role == "receiver")
    receiver();
  else if (role == "sender")
    sender(options);
  else if (role == "echo")
    std::thread(echo).join();
  else if (role == "pinger")
    pinger(options);
  else {
    std::cerr << "broker_members receiver|sender|echo|pinger OPTIONS" << std::endl;
    return 2;
  }
}
