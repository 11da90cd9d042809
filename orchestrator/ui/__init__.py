"""What a person looks at: progress, HTML, SVG. Pure but for the terminal."""
