package settings

// Suggest returns ": did you mean …?" with the candidate nearest to word, if any.
func Suggest(word string, candidates []string) string {
	if best := Nearest(word, candidates); best != "" {
		return ": did you mean " + best + "?"
	}
	return ""
}

// Nearest returns the candidate that word is most likely a typo of, or "" if
// none is close enough.
func Nearest(word string, candidates []string) string {
	best, least := "", 4
	for _, c := range candidates {
		if d := distance(word, c); d < least && d*2 < len(c)+1 {
			best, least = c, d
		}
	}
	return best
}

// distance returns the edit distance of a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
