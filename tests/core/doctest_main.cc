// The main() of every test that has none of its own.
#include <doctest/doctest.h>

int main(int argc, char** argv) {
  doctest::Context context;
  context.setOption("abort-after", 20);  // a wrong kernel would report every element
  context.applyCommandLine(argc, argv);  // after the line above, so that it comes first
  return context.run();
}
