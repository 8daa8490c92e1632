// Routes that cross process boundaries: with what they are of, and back.
#pragma once

#include <moetap/routes.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace moetap {

// {"start": 5, "end": 9, "dtype": "int16", "shape": [4, 48, 8], "layers": [3, 4, …],
//  "num_experts": 128, "npy": "<base64 of a .npy file>", "weights": {"dtype": "float32", "npy":
//  "<base64>"}, "not_present": [[7, 8, "stale"]]}: ids as
// to_npy() makes them, with the positions and the MoE layers that they are of, and for those
// without ids (-1) why;
// weights as weights_to_npy() does, if the shape has some. Throws what to_ids() does.
std::string to_json(const Routes& routes, IdType type);

// Reads to_json()'s text. ArgumentError that says what is wrong for any other text, one whose parts
// contradict each other, or one of other layers, top_k, num_experts or weights than `shape`, or
// with an expert twice in a layer of a token (unless the shape declares it); RangeError for an
// expert id that the model does not have.
Routes from_json(std::string_view text, const ModelShape& shape);

// Reads the bytes of a .npy file (format 1.0, integers, C order) as rows from position `start` on.
// A row with an id of -1 is missing. The file has rows of the shape's MoE layers, which its caller
// vouches for, or of all hidden layers: then every layer that the shape does not name must hold
// `dense_id`. ArgumentError for any other shape; that and RangeError as above.
Routes from_npy(std::string_view file, const ModelShape& shape, std::int64_t start,
                std::int64_t dense_id = -1);
// With weights, from the two files that to_npy() and weights_to_npy() make; the other is of a shape
// without, this one of a shape with some (ArgumentError). Each may have either form.
Routes from_npy(std::string_view ids, std::string_view weights, const ModelShape& shape,
                std::int64_t start, std::int64_t dense_id = -1);

}  // namespace moetap
