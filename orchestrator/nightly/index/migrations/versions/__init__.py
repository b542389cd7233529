"""The migrations, a module each. They stay as they are once released: tables may have moved on since."""
