# Doxygen's input filter: turns our plain comments into ones that it reads, line for line.
#
#   // About what comes next, with no empty line between.    becomes   /// …
#   int a;  // About what stands before it.                  becomes   int a;  ///< …
#
# A header's first comment is about the file; lines indented by three or more are code. Comments in
# functions, and those that an empty line follows, stay as they are.

# The text as it stands, whatever Doxygen or Markdown would take parts of it for.
function plain(text,    parts, n, i) {
  n = split(text, parts, "`")  # between two of them is code
  text = ""
  for (i = 1; i <= n; ++i) {
    if (i % 2) {
      gsub(/[\\@<>#&$%*|]|--/, "\\\\&", parts[i])
      if (parts[i] ~ />::/) gsub(/::/, "\\\\&", parts[i])  # no name of the outermost scope
    }
    text = text (i > 1 ? "`" : "") parts[i]
  }
  return text
}

# Prints the lines of a comment that were read, as they are or as documentation.
function print_comment(documents,    i, text) {
  for (i = 1; i <= num_lines; ++i) {
    text = substr(lines[i], match(lines[i], /\/\//) + 2)
    if (!documents) print lines[i]
    else print "///" (text ~ /^   / ? "  " text : plain(text))
  }
  num_lines = 0
}

# A comment that goes on beside what it is about, or one of its own.
/^ *\/\// {
  column = match($0, /\/\//)
  if (column == beside) print substr($0, 1, column - 1) "///<" plain(substr($0, column + 2))
  else if (in_function) print
  else lines[++num_lines] = $0
  next
}

/^#pragma once/ {
  print_comment(1)
  print "/// \\file"
  next
}

{
  declared = $0 !~ /^ *($|[}]|#(if|el|endif|include)|(class|struct|enum) [^ ]*;)/
  print_comment(declared)
  code = $0
  beside = 0
  column = match($0, /  \/\/ /)
  if (column) code = substr($0, 1, column - 1)
  if (column && !in_function && declared) {
    beside = column + 2
    print code "  ///<" plain(substr($0, column + 4))
  } else {
    print
  }
  # A brace that stays open begins a function, or else declarations.
  open = gsub(/[{]/, "&", code) - gsub(/[}]/, "&", code)
  if (in_function) in_function += open
  else if (code !~ /^ *(template *<.*> *)?(namespace|class|struct|union|enum|extern) / && open > 0) in_function = open
}

END { print_comment(0) }
