// Routes that cross process boundaries: with what they are of, and back.
#pragma once

#include <moetap/routes.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace moetap {

// {"start": 5, "end": 9, "dtype": "int16", "shape": [4, 48, 8], "npy": "<base64 of a .npy file>",
//  "weights": {"dtype": "float32", "npy": "<base64>"}, "not_present": [[7, 8, "stale"]]}: ids as
// to_npy() makes them, with the positions that they are of, and for those without ids (-1) why;
// weights as weights_to_npy() does, if the shape has some. Throws what to_ids() does.
std::string to_json(const Routes& routes, IdType type);

// Reads to_json()'s text. ArgumentError that says what is wrong for any other text, one whose parts
// contradict each other, or one of other numbers of layers or top_k or weights than `shape`;
// RangeError for an expert id that the model does not have.
Routes from_json(std::string_view text, const ModelShape& shape);

// Reads the bytes of a .npy file (format 1.0, integers, C order) as rows from position `start` on.
// A row with an id of -1 is missing. ArgumentError and RangeError as above.
Routes from_npy(std::string_view file, const ModelShape& shape, std::int64_t start);
// With weights, from the two files that to_npy() and weights_to_npy() make; the other is of a shape
// without, this one of a shape with some (ArgumentError).
Routes from_npy(std::string_view ids, std::string_view weights, const ModelShape& shape,
                std::int64_t start);

}  // namespace moetap
