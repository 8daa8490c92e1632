// A device that counts what is queued on it.
#pragma once

#include <moetap/device.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace moetap::test {

class CountingDevice final : public Device {
 public:
  struct Queued {
    std::vector<std::size_t> copies{};  // bytes of each
    std::vector<std::string> kernels{};
    int others = 0;  // fills, graphs, events, callbacks
    bool operator==(const Queued&) const = default;
  };

  explicit CountingDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  // What was queued since the last call.
  Queued take() { return std::exchange(queued_, {}); }

  std::string name() const override { return device_->name(); }
  Buffer allocate(std::size_t bytes) override { return device_->allocate(bytes); }
  Buffer allocate_pinned(std::size_t bytes) override { return device_->allocate_pinned(bytes); }
  Buffer pin(std::span<std::byte> memory) override { return device_->pin(memory); }
  std::unique_ptr<Event> make_event() override { return device_->make_event(); }
  void load(const KernelEntry& kernel) override {
    loaded_.insert(kernel.name);
    device_->load(kernel);
  }
  // The kernels that were made ready so far.
  const std::set<std::string>& loaded() const { return loaded_; }
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<CountingStream>(device_->make_stream(), queued_);
  }

 private:
  class CountingStream final : public Stream {
   public:
    CountingStream(std::unique_ptr<Stream> stream, Queued& queued)
        : stream_(std::move(stream)), queued_(queued) {}

    void copy(void* to, const void* from, std::size_t bytes) override {
      queued_.copies.push_back(bytes);
      stream_->copy(to, from, bytes);
    }
    void launch(const KernelCall& call) override {
      queued_.kernels.emplace_back(call.entry().name);
      stream_->launch(call);
    }
    void fill(void* to, std::uint8_t value, std::size_t bytes) override {
      ++queued_.others;
      stream_->fill(to, value, bytes);
    }
    void launch(const Graph& graph) override {
      ++queued_.others;
      stream_->launch(graph);
    }
    void record(Event& event) override {
      ++queued_.others;
      stream_->record(event);
    }
    void wait(Event& event) override {
      ++queued_.others;
      stream_->wait(event);
    }
    void call(void (*callback)(void*), void* argument) override {
      ++queued_.others;
      stream_->call(callback, argument);
    }
    bool idle() override { return stream_->idle(); }
    void synchronize() override { stream_->synchronize(); }
    void begin_capture() override { stream_->begin_capture(); }
    std::unique_ptr<Graph> end_capture() override { return stream_->end_capture(); }

   private:
    std::unique_ptr<Stream> stream_;
    Queued& queued_;
  };

  std::unique_ptr<Device> device_;
  Queued queued_;
  std::set<std::string> loaded_;
};

}  // namespace moetap::test
