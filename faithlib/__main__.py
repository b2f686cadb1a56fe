from faithlib.cli import main

main()
