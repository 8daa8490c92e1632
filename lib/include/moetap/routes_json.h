// Routes as self-describing JSON and .npy, for other processes, and back.
#pragma once

#include <moetap/export.h>
#include <moetap/routes.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace moetap {

// The rows as a JSON object:
//
//   {"start": 5, "end": 9, "dtype": "int16", "shape": [4, 48, 8], "layers": [3, 4, …],
//    "num_experts": 128, "npy": "<base64 of a .npy file>",
//    "weights": {"dtype": "float32", "npy": "<base64>"}, "not_present": [[7, 8, "stale"]]}
//
// Ids are as from to_npy(), with their positions and MoE layers. "not_present" says why rows have
// no ids (-1); also unverified ones have none, and come back as missing. Weights are as from
// weights_to_npy(), if the shape has them. Throws as to_ids().
MOETAP_API std::string to_json(const Routes& routes, IdType type);

// Reads text from to_json(), also if its arrays have all hidden layers; "shape" then does too. The
// layers that are not in "layers" must have -1. ArgumentError that says what is wrong for any other
// text, for text with members that are none of to_json()'s, and for text whose parts contradict
// each other. Likewise if layers, top_k, num_experts or weights are not those of `shape`, or if an
// expert comes twice in a token's layer (unless the shape declares it). RangeError for an expert id
// that the model does not have.
MOETAP_API Routes from_json(std::string_view text, const ModelShape& shape);

// Reads the bytes of a .npy file (format 1.0, integers, C order) as rows from position `start` on.
// A row with an id of -1 is missing. The file has either the shape's MoE layers or all hidden
// layers. For MoE layers the caller must know that they are the shape's. With all hidden layers,
// every layer that the shape does not name must be filled with `dense_id`. ArgumentError for any
// other array shape; otherwise errors as from_json().
MOETAP_API Routes from_npy(std::string_view file, const ModelShape& shape, std::int64_t start,
                           std::int64_t dense_id = -1);
// With weights, from the files that to_npy() and weights_to_npy() make. Each may have either form.
// ArgumentError if the shape has no weights here, or has some in the overload without them.
MOETAP_API Routes from_npy(std::string_view ids, std::string_view weights, const ModelShape& shape,
                           std::int64_t start, std::int64_t dense_id = -1);

}  // namespace moetap
