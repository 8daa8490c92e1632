#include <moetap/readers.h>
#include <moetap/stages.h>

#include <utility>
#include <vector>

namespace moetap {

std::unique_ptr<SlotReadTransport> make_joined_reader(const Endpoint& engine,
                                                      const Topology& topology,
                                                      SlotReaderMaker make) {
  std::vector<std::unique_ptr<SlotReadTransport>> stages;
  for (const std::vector<Endpoint>& endpoints : endpoints_of(engine, topology)) {
    std::vector<std::unique_ptr<SlotReadTransport>> parts;
    for (const Endpoint& endpoint : endpoints) parts.push_back(make(endpoint));
    stages.push_back(parts.size() == 1 ? std::move(parts.front()) : join_parts(std::move(parts)));
  }
  if (stages.size() == 1) return std::move(stages.front());
  return join_stages(engine.shape, std::move(stages));
}

}  // namespace moetap
