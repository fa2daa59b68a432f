// The switch of all mutants: notes that a place was reached, and says whether its mutant is chosen.
#pragma once

extern "C" {
extern unsigned char* omnihvd_mutants_reached;  // a byte for each
extern int omnihvd_mutant_chosen;
// Anew from the environment: MUTANT_CHOSEN, and the file MUTANTS_REACHED of the bytes.
void omnihvd_choose_mutant();
}

inline bool omnihvd_mutant(int number) {
  omnihvd_mutants_reached[number] = 1;
  return number == omnihvd_mutant_chosen;
}
