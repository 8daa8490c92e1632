// What both programs of this test agree on.
#pragma once

#include <moetap/endpoint.h>

#include <string>

inline moetap::Endpoint endpoint(const char* instance) {
  return {.instance = instance,
          .shape = moetap::ModelShape::uniform(2, 2, 8),
          .num_slots = 16,
          .max_tokens = 4};
}
